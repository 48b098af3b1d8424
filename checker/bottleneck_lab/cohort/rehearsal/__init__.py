"""A workshop played beforehand: made-up learners against the real server logic, in simulated time."""
