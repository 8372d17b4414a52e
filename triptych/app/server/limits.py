"""The limits of the server: sizes, durations, timeouts and concurrent requests."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """All limits of the server. A request that exceeds a limit gets an error that names the limit."""

    max_upload_bytes: int = 50_000_000  # size of one request with files
    max_upload_pixels: int = 40_000_000  # pixels of all images and video frames in one request
    max_upload_seconds: float = 600.0  # duration of the audio and video in one request
    max_concurrent_pixels: int = 80_000_000  # pixels of all images and video frames in all requests in progress
    max_concurrent_seconds: float = 1_200.0  # duration of the audio and video in all requests in progress
    decode_timeout: float = 15.0  # seconds to decode one file in a worker process
    max_decode_bytes: int = 2_000_000_000  # memory of a worker process
    header_timeout: float = 10.0  # seconds to receive the headers, from the first byte or the new connection
    body_timeout: float = 60.0  # seconds to receive the request body
    request_timeout: float = 60.0  # seconds to compute the response
    max_json_bytes: int = 1_000_000  # size of one request without files
    max_parts: int = 8  # number of parts of one query
    max_characters: int = 10_000  # length of one text, typed or uploaded
    max_hits: int = 200  # number of hits of one search
    max_queue_length: int = 64  # number of inputs that are being encoded or are waiting
    max_batch_size: int = 32  # number of inputs in one encoder batch
    max_uploads: int = 4  # number of concurrent requests with files, because decoding is expensive
    max_explanations: int = 4  # number of explanations in progress or waiting
    max_previews: int = 32  # number of thumbnails, peaks and spectrograms in progress or waiting
    max_connections: int = 512  # number of connections; beyond it, the longest idle connection is closed
    max_connections_per_address: int = 256  # number of connections of one client address
    retry_after: int = 2  # seconds in the Retry-After header of 503 responses


DEFAULT_LIMITS = Limits()  # The request schemas contain these limits. A server also checks its own limits.
