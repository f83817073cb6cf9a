"""What administrators and tools ask a broker for, and its figures over HTTP.

Never on the way of a message.

Floor: F8.
"""
