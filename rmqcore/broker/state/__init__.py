"""What a broker knows: topics, subscription groups, clients, offsets, settings, traffic.

Managers with their files in the store's ``config/``; never answers a request for messages.

Floor: F8.
"""
