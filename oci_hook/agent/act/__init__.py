"""Each part takes what was watched to a rule of judge/, and does what the rule says."""
