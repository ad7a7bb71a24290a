// For every processor.

#define SET portable
#define TOGETHER 1
#include "entry.inl"
