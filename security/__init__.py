"""TLS: keys and certificates as they are read and checked, and the streams that are made with them.

Knows no message and no request. Imports nothing of the other packages but `quorumd.config`. The library
`cryptography` is imported only where security is configured.
"""
