"""Topics consumed as work queues: competing consumers, leases, redelivery, dead letters."""
