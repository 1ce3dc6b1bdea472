"""The dispatcher: seals batches, sends jobs to the queue, finds dead attempts and delivers webhooks."""
