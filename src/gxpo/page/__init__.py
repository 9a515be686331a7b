"""Self-contained HTML pages: components that `report.html`, `gxpo explain` and `gxpo doctor --html` share."""
