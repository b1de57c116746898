"""From encoded batches to the brokers' answers: when batches are sent, and what an answer means."""
