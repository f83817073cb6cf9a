"""Receipts that say `disk`: many puts wait at the same time and share the flushes."""

import asyncio
import sys
import tempfile
import time

import rmqcore


async def main(directory: str) -> None:
    """Put a hundred messages at once, each acknowledged when the disk has it."""
    async with rmqcore.open_store(directory, flush_disk_type="SYNC_FLUSH") as store:
        began = time.perf_counter()
        puts = [store.put_async("Payments", b"payment %d" % n, keys=f"p{n}") for n in range(100)]
        receipts = await asyncio.gather(*puts)
        elapsed_ms = (time.perf_counter() - began) * 1000
        levels = {str(receipt.durability) for receipt in receipts}
        print(f"{len(receipts)} receipts in {elapsed_ms:.1f} ms, durability {levels}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()))
