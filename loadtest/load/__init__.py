"""Load campaigns: data that says what is offered, what is broken meanwhile and what must be kept; Locust offers it."""
