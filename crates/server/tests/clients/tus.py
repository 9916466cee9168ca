"""Uploads one file with tuspy: python tus.py FILE ENDPOINT TOKEN PATH"""

import sys

from tusclient.client import TusClient

file, endpoint, token, path = sys.argv[1:]
client = TusClient(endpoint, headers={"Authorization": "Bearer " + token})
metadata = {"filename": path.rsplit("/", 1)[-1], "path": path}
uploader = client.uploader(
    file, chunk_size=4 << 20, metadata=metadata, retries=40, retry_delay=0.25, upload_checksum=True
)
uploader.upload()
print("stored")
