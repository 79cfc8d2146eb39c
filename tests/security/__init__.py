"""Certificates, names and properties."""
