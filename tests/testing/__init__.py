"""What quorumd.testing gives to others."""
