"""Views for pages, exports and the learner's client, computed from the database when needed."""
