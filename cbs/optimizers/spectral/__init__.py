"""Parts shared by Muon and related methods: momentum, and the polar factors of matrices."""
