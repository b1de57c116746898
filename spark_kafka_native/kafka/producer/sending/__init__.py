"""From encoded batches to the brokers' answers: what is sent when, and what an answer means."""
