"""The HTTP service: classical computer vision, batched."""
