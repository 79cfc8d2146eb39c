"""What deploy/ holds: rules, dashboards, units."""
