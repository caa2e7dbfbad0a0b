"""How well several GPUs of one machine are fed together, and what communication takes."""
