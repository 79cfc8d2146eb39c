"""A page that shows what the tables hold: one HTML file that needs nothing beside it."""
