"""Objects by name, in a directory, in a bucket or behind fsspec: list, size, read at, create.

Never overwrites an object, and never knows what is in one. Needs nothing for directories; pyarrow
for S3, GCS and Azure, and the client of each to write; fsspec for what it knows.

Floor: F3.
"""

from rmqcore.files.objects.open_objects import open_objects
from rmqcore.files.objects.protocol import ObjectInfo, ObjectReader, Objects
from rmqcore.files.objects.storage_options import is_url

__all__ = ["ObjectInfo", "ObjectReader", "Objects", "is_url", "open_objects"]
