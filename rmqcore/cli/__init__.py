"""The ``rmqcore`` command; needs the extra ``[cli]``. Floor: F10."""
