"""How much one visitor, and all of them together, may ask of the server."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Every limit of the server; what is beyond one is refused with a text that names it."""

    max_upload_bytes: int = 50_000_000  # of one request, files included
    max_upload_pixels: int = 40_000_000  # of the pictures and frames of one request
    max_upload_seconds: float = 600.0  # of the sounds and films of one request
    max_concurrent_pixels: int = 80_000_000  # of all requests that are being worked on
    max_concurrent_seconds: float = 1_200.0  # likewise
    decode_timeout: float = 15.0  # for reading one file, in a process of its own
    max_decode_bytes: int = 2_000_000_000  # of memory that such a process may use
    header_timeout: float = 10.0  # until the head of a request is here, from its first byte or the connection
    body_timeout: float = 60.0  # until the last byte of a request is here
    request_timeout: float = 60.0  # until a request is answered, or given up
    max_json_bytes: int = 1_000_000  # of a request without files
    max_parts: int = 8  # of one query, or texts of one call for embeddings
    max_characters: int = 10_000  # of one text, written or uploaded
    max_hits: int = 200  # of one search, all modalities together
    max_queue_length: int = 64  # requests at the encoder; one more is turned away
    max_batch_size: int = 32  # of them at once through the encoder
    max_uploads: int = 4  # requests with files at once; decoding is what costs most
    max_explanations: int = 4  # being worked out or waiting
    max_previews: int = 32  # pictures, outlines and spectrograms being made or waiting
    max_connections: int = 512  # at once; beyond, the one that has waited longest for its client is closed
    max_connections_per_address: int = 256  # of them from one address
    retry_after: int = 2  # what a visitor who was turned away is told to wait
