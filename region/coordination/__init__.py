"""Coordinators: replicated state of groups, transactions and queues, each kept where its name hashes to."""
