"""What servers are asked, and when: sessions of invented words, of people, of production's traces."""
