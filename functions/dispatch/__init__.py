"""Choosing the replica of a call and calling it: client, dispatcher, AEBS, resolvers, rules of replicas."""
