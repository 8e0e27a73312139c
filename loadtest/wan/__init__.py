"""What regions far from each other see: latency above the floor, and what cuts, loss and caps cost."""
