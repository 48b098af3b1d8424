"""A workshop played beforehand: made-up learners, the real server logic, simulated time."""
