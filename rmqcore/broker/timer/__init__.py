"""Messages for later: RocketMQ 5's timer messages by the tables in the store, and their recall.

Never hands a message to a client: what is due is put into its own topic.

Floor: F8.
"""
