"""Model and Statistics -> Plan."""
