"""The messages, one module per API; import the module that is needed, none is loaded from here."""
