"""POP: messages handed out for a while, acknowledged or handed out again.

Hand-outs and acknowledgements are records of the revive topic, as RocketMQ's; never a file of its
own but the orders of ordered groups.

Floor: F8.
"""
