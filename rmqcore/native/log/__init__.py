"""The writing side of the log: its tail, the queues' next offsets, group commit, the put itself.

Never decides when to roll, flush or stop.

Floor: F1.
"""
