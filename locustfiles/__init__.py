"""Load scenarios, the objectives they are judged by, and the verdict."""
