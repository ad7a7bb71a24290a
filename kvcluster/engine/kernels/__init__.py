"""The engine's own operators in C++: attention where K and V lie, and what stands between the linear layers."""
