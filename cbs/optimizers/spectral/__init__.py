"""What Muon and its kin share: momentum, and the polar factors of matrices."""
