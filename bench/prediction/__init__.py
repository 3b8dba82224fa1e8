"""What placement predicted of each request of a trace, beside what happened, and beside the best in hindsight."""
