"""Makes ``rmqcore:///path`` an address of kombu's and Celery's, with nothing imported by a program.

kombu loads this wherever rmqcore is installed and messages are sent, as an extension with
serializers, the only kind that it knows. It has none, imports nothing of rmqcore, and tells where
the transport is.
"""

from kombu.transport import TRANSPORT_ALIASES

TRANSPORT_ALIASES.setdefault("rmqcore", "rmqcore.adapters.kombu:Transport")

#: encoder, decoder and content type of a serializer that cannot be chosen
NO_SERIALIZER = (None, None, "application/x-rmqcore")
