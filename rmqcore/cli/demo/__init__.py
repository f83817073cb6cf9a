"""``rmqcore demo``: real text through the whole engine, each byte compared."""
