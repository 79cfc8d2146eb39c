"""A page that shows the quorum in a browser: what it reads, the last minutes, and what is wrong in words."""
