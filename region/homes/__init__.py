"""Homes that move: control's book of them, who carries a move out, what regions answer, leases and failover."""
