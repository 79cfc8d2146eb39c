"""Tests of the client library and quorumctl; a package because its files share a fake quorum."""
