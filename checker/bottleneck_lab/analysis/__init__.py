"""Pure functions on a timeline: where the time went and why."""
