"""The web server: an API for learners' clients, pages for browsers, and a stream of changes."""
