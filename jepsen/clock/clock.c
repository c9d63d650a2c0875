/* Clocks of one process, wrong on purpose.
 *
 * Two things from this one file:
 *   cc -O2 -shared -fPIC -o clock.so clock.c     goes into a process: LD_PRELOAD=clock.so HOLDFAST_CLOCK=FILE
 *   cc -O2 -DTOOL -o clock clock.c               turns it: clock FILE rate PPM | clock FILE wall MS | clock FILE
 *
 * A drift moves CLOCK_REALTIME, CLOCK_MONOTONIC and CLOCK_BOOTTIME together, since a machine has one crystal, and never
 * makes a clock leap: a new rate goes on from where the old one had come to. A jump moves CLOCK_REALTIME alone, as
 * setting the clock does. The file is the clock's state, so a process that is started again goes on with it.
 *
 * libfaketime does not help: it replaces functions of libc, and the gateway reads the clock of its leases from the vDSO
 * without libc. So the vDSO's own functions are overwritten, in this one process: libc and all others call these. Waits of the kernel (epoll, futex) keep the true rate.
 *
 * Linux on x86-64 and aarch64.
 */
#define _GNU_SOURCE
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define FILE_BYTES 4096
#define NANOS 1000000000LL

/* What the file holds. Times in nanoseconds. */
struct state {
	uint64_t turn;      /* odd while it is being written */
	int64_t base;       /* true CLOCK_BOOTTIME since which the rate counts */
	int64_t offset;     /* of all clocks at base */
	int64_t ppm;        /* too fast by so many millionths; negative: too slow */
	int64_t wall;       /* of CLOCK_REALTIME beyond that */
	uint64_t handed[3]; /* how often a process was told: realtime, monotonic, boottime */
};

static volatile struct state *clocks;

static int64_t truth(clockid_t id, int *failed)
{
	struct timespec t = { 0, 0 };
	*failed = syscall(SYS_clock_gettime, id, &t) != 0;
	return t.tv_sec * NANOS + t.tv_nsec;
}

static int64_t drifted(const struct state *s, int64_t boot)
{
	return s->offset + (int64_t)((__int128)(boot - s->base) * s->ppm / 1000000);
}

static struct state look(void)
{
	struct state s;
	uint64_t before, after;
	do {
		before = __atomic_load_n(&clocks->turn, __ATOMIC_ACQUIRE);
		s = *(struct state *)clocks;
		__atomic_thread_fence(__ATOMIC_ACQUIRE);
		after = __atomic_load_n(&clocks->turn, __ATOMIC_RELAXED);
	} while ((before & 1) || before != after);
	return s;
}

static int map(const char *file, int flags)
{
	int fd = open(file, flags | O_CLOEXEC, 0644);
	if (fd < 0 || ((flags & O_CREAT) && ftruncate(fd, FILE_BYTES) != 0))
		return -1;
	void *at = mmap(NULL, FILE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (at == MAP_FAILED)
		return -1;
	clocks = at;
	return 0;
}

#ifndef TOOL

static int told(clockid_t id, struct timespec *to)
{
	int failed, which;
	int64_t now = truth(id, &failed);
	if (failed)
		return -EINVAL;
	switch (id) {
	case CLOCK_REALTIME: case CLOCK_REALTIME_COARSE: case CLOCK_TAI:
		which = 0;
		break;
	case CLOCK_MONOTONIC: case CLOCK_MONOTONIC_COARSE: case CLOCK_MONOTONIC_RAW:
		which = 1;
		break;
	case CLOCK_BOOTTIME:
		which = 2;
		break;
	default: /* Clocks of processor time. */
		to->tv_sec = now / NANOS;
		to->tv_nsec = now % NANOS;
		return 0;
	}
	struct state s = look();
	now += drifted(&s, which == 2 ? now : truth(CLOCK_BOOTTIME, &failed));
	if (which == 0)
		now += s.wall;
	__atomic_fetch_add(&clocks->handed[which], 1, __ATOMIC_RELAXED);
	to->tv_sec = now / NANOS;
	to->tv_nsec = now % NANOS;
	return 0;
}

static int told_day(struct timeval *to, void *zone)
{
	struct timespec t;
	if (zone)
		memset(zone, 0, sizeof(struct timezone));
	if (to && told(CLOCK_REALTIME, &t) == 0) {
		to->tv_sec = t.tv_sec;
		to->tv_usec = t.tv_nsec / 1000;
	}
	return 0;
}

static time_t told_seconds(time_t *to)
{
	struct timespec t = { 0, 0 };
	told(CLOCK_REALTIME, &t);
	if (to)
		*to = t.tv_sec;
	return t.tv_sec;
}

static void die(const char *what)
{
	fprintf(stderr, "clock.so: %s\n", what);
	_exit(90);
}

/* Puts a jump to `to` where a function of the vDSO begins. */
static void overwrite(unsigned char *from, void *to)
{
#if defined(__x86_64__)
	unsigned char jump[12] = { 0x48, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xe0 }; /* mov rax, to; jmp rax */
	memcpy(jump + 2, &to, 8);
#elif defined(__aarch64__)
	unsigned char jump[16] = { 0x50, 0, 0, 0x58, 0, 0x02, 0x1f, 0xd6 }; /* ldr x16, .+8; br x16 */
	memcpy(jump + 8, &to, 8);
#else
#error "x86-64 and aarch64 only"
#endif
	memcpy(from, jump, sizeof jump);
	__builtin___clear_cache((char *)from, (char *)from + sizeof jump);
}

__attribute__((constructor)) static void begin(void)
{
	const char *file = getenv("HOLDFAST_CLOCK");
	unsigned char *image = (unsigned char *)getauxval(AT_SYSINFO_EHDR);
	if (!file)
		die("HOLDFAST_CLOCK: found nothing, expected a file that `clock` made");
	if (map(file, O_RDWR) != 0)
		die("HOLDFAST_CLOCK: the file cannot be mapped");
	if (!image)
		die("this process has no vDSO");
	Elf64_Ehdr *head = (Elf64_Ehdr *)image;
	Elf64_Shdr *sections = (Elf64_Shdr *)(image + head->e_shoff);
	unsigned char *end = (unsigned char *)(sections + head->e_shnum);
	long page = sysconf(_SC_PAGESIZE);
	size_t bytes = (size_t)(end - image + page - 1) / page * page;
	int found = 0;
	if (mprotect(image, bytes, PROT_READ | PROT_WRITE | PROT_EXEC) != 0)
		die("the vDSO cannot be written to");
	for (int i = 0; i < head->e_shnum; i++) {
		if (sections[i].sh_type != SHT_DYNSYM)
			continue;
		Elf64_Sym *names = (Elf64_Sym *)(image + sections[i].sh_offset);
		const char *text = (const char *)(image + sections[sections[i].sh_link].sh_offset);
		for (size_t n = 0; n < sections[i].sh_size / sizeof *names; n++) {
			const char *name = text + names[n].st_name;
			unsigned char *at = image + names[n].st_value;
			if (!strcmp(name, "__vdso_clock_gettime") || !strcmp(name, "__kernel_clock_gettime")) {
				overwrite(at, (void *)told);
				found = 1;
			} else if (!strcmp(name, "__vdso_gettimeofday") || !strcmp(name, "__kernel_gettimeofday")) {
				overwrite(at, (void *)told_day);
			} else if (!strcmp(name, "__vdso_time")) {
				overwrite(at, (void *)told_seconds);
			}
		}
	}
	mprotect(image, bytes, PROT_READ | PROT_EXEC);
	if (!found)
		die("the vDSO has no clock_gettime");
}

#else

int main(int argc, char **argv)
{
	int failed;
	long long given = 0;
	char rest = 0;
	if ((argc != 2 && argc != 4) || (argc == 4 && (sscanf(argv[3], "%lld%c", &given, &rest) != 1 ||
	                                               (strcmp(argv[2], "rate") && strcmp(argv[2], "wall"))))) {
		fprintf(stderr, "expected: clock FILE [rate PPM | wall MILLISECONDS]\n");
		return 2;
	}
	if (map(argv[1], O_RDWR | O_CREAT) != 0) {
		perror(argv[1]);
		return 1;
	}
	int64_t boot = truth(CLOCK_BOOTTIME, &failed);
	struct state s = look();
	if (argc == 4) {
		s.offset = drifted(&s, boot);
		s.base = boot;
		if (!strcmp(argv[2], "rate"))
			s.ppm = given;
		else
			s.wall = given * 1000000;
		__atomic_fetch_add(&clocks->turn, 1, __ATOMIC_SEQ_CST);
		clocks->base = s.base;
		clocks->offset = s.offset;
		clocks->ppm = s.ppm;
		clocks->wall = s.wall;
		__atomic_fetch_add(&clocks->turn, 1, __ATOMIC_SEQ_CST);
	}
	printf("{\"ppm\":%lld,\"ahead_ms\":%lld,\"wall_ms\":%lld,\"realtime\":%llu,\"monotonic\":%llu,\"boottime\":%llu}\n",
	       (long long)s.ppm, (long long)(drifted(&s, boot) / 1000000), (long long)(s.wall / 1000000),
	       (unsigned long long)s.handed[0], (unsigned long long)s.handed[1], (unsigned long long)s.handed[2]);
	return 0;
}
#endif
