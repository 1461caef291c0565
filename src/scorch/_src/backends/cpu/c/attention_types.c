typedef long long i64;
typedef int i32;
typedef unsigned u32;
typedef unsigned short u16;
typedef unsigned char u8;
enum { ARGUMENTS };
