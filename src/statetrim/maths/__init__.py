"""Linear algebra, paired statistics, units and formatting; reads no file and no model."""
