typedef struct object object;
typedef struct { void *data; int device, device_id, ndim; unsigned char code, bits; unsigned short lanes;
                 long long *shape, *strides; unsigned long long offset; } tensor_t;
typedef struct managed { unsigned major, minor; void *context; void (*deleter)(struct managed *);
                         unsigned long long flags; tensor_t tensor; } managed_t;
typedef struct { unsigned major, minor; void *older;
                 int (*allocate)(tensor_t *, managed_t **, void *,
                                 void (*)(void *, const char *, const char *));
                 int (*take)(void *, managed_t **);
                 int (*give)(managed_t *, void **);
                 int (*look)(void *, tensor_t *);
                 int (*stream)(int, int, void **); } table_t;
