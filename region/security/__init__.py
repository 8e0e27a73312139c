"""Who may do what: users, access control lists, quotas, sign-in mechanisms and the audit log of one broker."""
